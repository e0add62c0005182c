"""How many seeded faults `verify` finds and names, and how often honest sides are unequal to it."""
