"""Recurrent networks over sequences, trees and documents, and attention of their decoders."""
