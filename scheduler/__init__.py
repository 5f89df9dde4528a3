"""The policy, which decides purely, and the tick, which carries out what was decided."""
