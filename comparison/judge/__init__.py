"""What the numbers say."""
