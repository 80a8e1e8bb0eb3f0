"""`compactor demo`: the product on real input, in a directory of its own."""
