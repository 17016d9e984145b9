"""The tests: fast ones in ``unit``, those that train or start commands in ``integration``."""
