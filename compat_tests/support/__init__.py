"""Code that tests share: inputs, environments for programs, and stock's side of comparisons."""
