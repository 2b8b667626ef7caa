"""What workers are ordered to do: all that holds is in the order that each finds."""

from __future__ import annotations

from spotmpi.launch.head.worker_orders import Orders
from spotmpi.launcher_channel import Order


class Folder:
    """Where orders are put, as long as there is room."""

    def __init__(self) -> None:
        self.room = True
        self.written: list[tuple[int, Order]] = []

    def write(self, worker: int, order: Order) -> None:
        if not self.room:
            raise OSError("no space left")
        self.written.append((worker, order))


def test_an_order_holds_when_another_one_is_given() -> None:
    folder = Folder()
    orders = Orders(folder.write)
    assert orders.give(3, leave=True)
    assert orders.give(3, newcomer=7)
    assert orders.give(2, stop=True)
    assert orders.give(3, newcomer=0)
    assert folder.written == [
        (3, Order(leave=True)),
        (3, Order(leave=True, newcomer=7)),
        (2, Order(stop=True)),
        (3, Order(leave=True)),
    ]


def test_what_holds_already_is_not_written_again() -> None:
    folder = Folder()
    orders = Orders(folder.write)
    assert orders.give(3, newcomer=0)
    assert orders.give(3, leave=True)
    assert orders.give(3, leave=True)
    assert len(folder.written) == 1


def test_an_order_for_which_there_is_no_room_was_not_given_and_may_be_again() -> None:
    folder = Folder()
    orders = Orders(folder.write)
    orders.give(3, stop=True)
    folder.room = False
    assert not orders.give(3, leave=True)
    folder.room = True
    assert orders.give(3, newcomer=5)
    assert orders.give(3, leave=True)
    assert folder.written[1:] == [
        (3, Order(stop=True, newcomer=5)),
        (3, Order(stop=True, leave=True, newcomer=5)),
    ]


def test_who_is_ordered_to_leave_is_known() -> None:
    orders = Orders(lambda worker, order: None)
    orders.give(1, leave=True)
    orders.give(1, newcomer=5)
    orders.give(2, stop=True)
    assert orders.leaving == {1}
