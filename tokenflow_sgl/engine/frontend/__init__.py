"""What clients say: reading rates, and what is refused."""
