"""What a legacy program finds where stock's names were, and how it is started."""
