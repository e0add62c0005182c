"""What tests share: inputs, programs' surroundings, stock's side of a comparison."""
