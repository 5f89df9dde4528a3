"""The public Python face: submit, look at and steer jobs from a program."""
