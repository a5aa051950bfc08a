"""How a step becomes a sample: the space of a transition, the builders of samples, and the recorders of the modes."""
