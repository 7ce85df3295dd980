"""Groups of a thousand members in the model of `tests.fakes.simulation`: what a join or a restart costs everybody."""
