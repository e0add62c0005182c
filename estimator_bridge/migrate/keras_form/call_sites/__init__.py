"""The calls by which a program makes and uses estimators, and the calls that replace them."""
