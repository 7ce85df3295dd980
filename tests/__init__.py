"""The tests; a package, so that test modules of the same name in different folders do not collide."""
