"""Showing and checking data and trees."""
