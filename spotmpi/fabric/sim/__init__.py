"""A seeded fabric in memory: many workers in one thread, any of which may die at any event.

It behaves as badly as MPI with ULFM may, not as well as Open MPI usually does:

- everything takes a random time; only messages between the same two workers keep their order;
- each worker learns of each loss separately, in any order, sooner or later;
- if a worker dies in a collective that all have entered, it completes on some members and fails
  on others; a collective that a dead member never entered fails on all;
- parts of one round are summed side by side, and complete in any order;
- a part that failed keeps writing to its result until it is given up;
- a ``Share`` may complete on its source long before the others enter it;
- the last messages of a dying worker may or may not arrive; its revocations always do;
- a worker that must ask another one for the answer of a build waits for ever if that one has ended
  without dying (see `builds`);
- work in the background is done at one moment, if its worker lives until then;
- it is drawn whether two workers fetch models as neighbours or between hosts.
"""
