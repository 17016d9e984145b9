"""Recurrent networks over sequences, trees and documents, and the attention of their decoders."""
