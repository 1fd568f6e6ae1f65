// Small MPI programs that are wrong: each has a fault that a look at its logs must find.
//
//   faults race:N       rank 0 crashes in about one of N orders of the messages it takes from anybody
//          cycle        three ranks wait for each other: a receive, a request, a send
//          divided      one rank never comes to a barrier, and polls for a message from one that is in it
//          unreceived   a message that nobody takes, and a receive that nothing comes for
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

// A table of results by the hash of their order, in which one place was forgotten.
static void store_result(int **table, unsigned order, int places)
{
    *table[order % (unsigned)places] += 1;
}

static void race(int places)
{
    enum { EACH = 8 };
    if (rank != 0) {
        for (int i = 0; i < EACH; i++) {
            // Work of some length: the clock decides.
            usleep((useconds_t)(MPI_Wtime() * 1e7) % 1500);
            MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_WORLD);
        }
        return;
    }
    unsigned order = 2166136261u;
    for (int i = 0; i < EACH * (size - 1); i++) {
        int value;
        MPI_Status status;
        MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        order = (order ^ (unsigned)status.MPI_SOURCE) * 16777619u;
        order ^= order >> 15;
        printf("%d ", status.MPI_SOURCE);
    }
    printf("\norder %08x\n", order);
    fflush(stdout);
    int **table = calloc((size_t)places, sizeof *table);
    for (int i = 1; i < places; i++)
        table[i] = calloc(1, sizeof **table);
    store_result(table, order, places);
}

static void cycle(void)
{
    int value = 0;
    MPI_Request request;
    if (rank == 0)
        MPI_Recv(&value, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) {
        MPI_Irecv(&value, 1, MPI_INT, 2, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (rank == 2)
        MPI_Ssend(&value, 1, MPI_INT, 0, 6, MPI_COMM_WORLD);
}

static void divided(void)
{
    MPI_Comm copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    if (rank == 2) {
        int value, flag = 0;
        MPI_Request request;
        MPI_Irecv(&value, 1, MPI_INT, 1, 3, copy, &request);
        while (!flag)
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(copy);
}

static void unreceived(void)
{
    int value = rank;
    MPI_Request request;
    if (rank == 1) {
        MPI_Send(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Send(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        MPI_Irecv(&value, 1, MPI_INT, 2, 7, MPI_COMM_WORLD, &request);
        MPI_Recv(&value, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    // A job that hangs ends at last, whoever forgot it.
    alarm(240);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *name = argc > 1 ? argv[1] : "";
    if (strncmp(name, "race:", 5) == 0)
        race(atoi(name + 5));
    else if (strcmp(name, "cycle") == 0)
        cycle();
    else if (strcmp(name, "divided") == 0)
        divided();
    else if (strcmp(name, "unreceived") == 0)
        unreceived();
    MPI_Finalize();
    return 0;
}
