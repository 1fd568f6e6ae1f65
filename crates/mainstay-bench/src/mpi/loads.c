// Loads whose demand on the log is set from outside.
//
//   loads small BYTES            batches of small messages, sends and receives timed apart: prints nanoseconds for each
//   loads flow STEPS UNITS BYTES computes UNITS, then passes BYTES on around the ring, STEPS times
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, BATCHES = 2000, FIELD = 1 << 18 };

static int rank, size;

// Not the C library's: the recorder stands before that one, too.
static double now_ns(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double values[])
{
    qsort(values, BATCHES, sizeof *values, by_value);
    return values[BATCHES / 2] / BATCH;
}

// Rank 0 sends a batch, and takes one that has already arrived: neither waits for the other side.
static void small(int bytes)
{
    static double sends[BATCHES], receives[BATCHES], copies[BATCHES];
    char *from = calloc(BATCH, (size_t)bytes), *to = calloc(BATCH, (size_t)bytes);
    for (int batch = 0; batch < BATCHES; batch++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = now_ns();
        if (rank == 0)
            for (int i = 0; i < BATCH; i++)
                MPI_Send(from + i * bytes, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
        sends[batch] = now_ns() - begun;
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1) {
            for (int i = 0; i < BATCH; i++)
                MPI_Recv(to + i * bytes, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < BATCH; i++)
                MPI_Send(from + i * bytes, bytes, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        begun = now_ns();
        if (rank == 0)
            for (int i = 0; i < BATCH; i++)
                MPI_Recv(to + i * bytes, bytes, MPI_CHAR, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        receives[batch] = now_ns() - begun;
        begun = now_ns();
        for (int i = 0; i < BATCH; i++) {
            memcpy(to + i * bytes, from + i * bytes, (size_t)bytes);
            __asm__ volatile("" ::: "memory");
        }
        copies[batch] = now_ns() - begun;
    }
    if (rank == 0)
        printf("send %.2f\nreceive %.2f\nmemcpy %.2f\n", median(sends), median(receives), median(copies));
    free(from);
    free(to);
}

static void flow(int steps, int units, int bytes)
{
    static double field[FIELD];
    char *out = calloc(1, (size_t)bytes), *in = calloc(1, (size_t)bytes);
    int right = (rank + 1) % size, left = (rank + size - 1) % size, at = 1;
    for (int i = 0; i < FIELD; i++)
        field[i] = rank + i;
    for (int step = 0; step < steps; step++) {
        for (int unit = 0; unit < units; unit++) {
            if (at + 65 >= FIELD)
                at = 1;
            for (int i = at; i < at + 64; i++)
                field[i] = (field[i - 1] + field[i] + field[i + 1]) / 3;
            at += 64;
        }
        out[step % bytes]++;
        MPI_Sendrecv(out, bytes, MPI_CHAR, right, 1, in, bytes, MPI_CHAR, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    printf("rank %d field %.17g got %d\n", rank, field[FIELD / 2], in[0]);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc == 3 && strcmp(argv[1], "small") == 0)
        small(atoi(argv[2]));
    else if (argc == 5 && strcmp(argv[1], "flow") == 0)
        flow(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    MPI_Finalize();
    return 0;
}
