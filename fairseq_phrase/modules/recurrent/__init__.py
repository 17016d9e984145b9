"""Recurrent networks over sequences, trees and documents."""
