"""What papers report, beside what the models here make of it: one module for each paper."""
