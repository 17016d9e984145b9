"""The tests mirror the package, and are fast but for those of ``commands``, which train and start processes."""
