"""The colours of all plots: those of Okabe and Ito, which the colour-blind can tell apart."""

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, GREY, INK = "#CC79A7", "#999999", "#333333"
