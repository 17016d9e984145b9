"""What makes and reads experiments. Nothing but commands imports it."""
