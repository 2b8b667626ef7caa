"""A script that averages gradients in a group, and applies them itself: run by test_revocations."""

import model

import spotmpi

RATE = 0.02
gradients = 0
with spotmpi.Group(model.params(), seed=7) as group:
    for batch in group.batches(model.SAMPLES, batch_size=4, passes=3):
        _, mine = model.gradient(group.state, batch)
        gradients += 1
        average = group.average(mine)
        for key, array in group.state.items():
            array[...] -= array.dtype.type(RATE) * average[key]
final = group.worker, model.fingerprint(group.state), gradients, group.steps
print("FINAL", *final, *(repr(float(value)) for value in model.values(group.state)))
