"""An mpi4py program: objects, matched probes, wildcards, collectives on buffers."""
from array import array
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
if rank == 0:
    order = []
    for _ in range(10 * (size - 1)):
        status = MPI.Status()
        item = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        assert item["rank"] == status.Get_source()
        order.append(item["rank"])
    print("order", order)
else:
    for i in range(10):
        comm.send({"rank": rank, "i": i, "text": "x" * i}, dest=0, tag=i)
total = comm.allreduce(rank)
assert total == size * (size - 1) // 2
everyone = comm.allgather((rank, rank * rank))
half = comm.Split(rank % 2, rank)
numbers = array("d", [rank] * 100)
half.Bcast(numbers, root=0)
request = comm.isend(rank, dest=(rank + 1) % size, tag=99)
left = comm.recv(source=(rank - 1) % size, tag=99)
request.wait()
half.Free()
print("rank", rank, total, everyone[-1], numbers[3], left)
