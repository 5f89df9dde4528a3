"""The fine-tuning program that a spool can stop at any step and start again exactly where it was."""
