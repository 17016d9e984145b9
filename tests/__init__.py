"""The tests mirror the package. Those of ``commands`` train and start processes, all others are fast."""
