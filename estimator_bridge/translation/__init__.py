"""From legacy objects to what the engine is told."""
