"""From plan to run to plan: a training that runs is watched, and planned again as it goes."""
