"""Data directories, trees and attention: statistics, checks and pictures."""
