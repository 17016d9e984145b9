"""Recurrent networks over sequences, trees and documents: what came before attention."""
