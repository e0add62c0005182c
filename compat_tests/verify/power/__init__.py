"""How many seeded faults `verify` finds and names, and how often it calls honest sides unequal."""
