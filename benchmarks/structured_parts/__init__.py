"""What the programs of structured output are made of."""
