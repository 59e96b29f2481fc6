"""Programs that own their loop and ask for actions: what they use, and the side of the trainer."""
