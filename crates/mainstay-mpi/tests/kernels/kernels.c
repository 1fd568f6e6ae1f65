// Small MPI programs that check themselves: each exercises one kind of nondeterminism or one path of message data.
//
//   kernels NAME[:N]…    each with its own or N rounds: ring halo workers pool server persistent derived split collectives probe
//                        corner large loaded truncated forked window crash killed aborted exits leaves fatal
//                        differs unwritten
//
// Every rank prints what it saw, so that a replay can be compared line by line. Exit code 1 says that MPI did something wrong.
#include <mpi.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned hash(unsigned sum, int value) { return (sum ^ (unsigned)value) * 16777619u; }

static void ring(int rounds)
{
    int token = 0;
    for (int i = 0; i < rounds; i++) {
        if (rank == 0) {
            token++;
            MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, i, MPI_COMM_WORLD);
            MPI_Recv(&token, 1, MPI_INT, size - 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&token, 1, MPI_INT, rank - 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            token++;
            MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, i, MPI_COMM_WORLD);
        }
    }
    check(rank != 0 || token == rounds * size, "the token went through every rank");
    printf("rank %d token %d\n", rank, token);
}

static void halo(int steps)
{
    enum { N = 5000 };
    static double field[N + 2];
    int dims[1] = {size}, periods[1] = {1}, left, right;
    MPI_Comm line;
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &line);
    MPI_Cart_shift(line, 0, 1, &left, &right);
    for (int i = 0; i < N + 2; i++)
        field[i] = rank * N + i;
    double before = 0, after = 0, sum = 0;
    for (int i = 1; i <= N; i++)
        sum += field[i];
    MPI_Allreduce(&sum, &before, 1, MPI_DOUBLE, MPI_SUM, line);
    for (int step = 0; step < steps; step++) {
        MPI_Request requests[4];
        MPI_Irecv(&field[0], 1, MPI_DOUBLE, left, 1, line, &requests[0]);
        MPI_Irecv(&field[N + 1], 1, MPI_DOUBLE, right, 2, line, &requests[1]);
        MPI_Isend(&field[1], 1, MPI_DOUBLE, left, 2, line, &requests[2]);
        MPI_Isend(&field[N], 1, MPI_DOUBLE, right, 1, line, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        double last = field[0];
        for (int i = 1; i <= N; i++) {
            double here = field[i];
            field[i] = here + (last - 2 * here + field[i + 1]) / 4;
            last = here;
        }
        // The whole field once in a while: long messages.
        if (step % 10 == 0) {
            static double other[N];
            MPI_Sendrecv(&field[1], N, MPI_DOUBLE, right, 3, other, N, MPI_DOUBLE, left, 3, line, MPI_STATUS_IGNORE);
            MPI_Sendrecv_replace(other, N, MPI_DOUBLE, left, 4, right, 4, line, MPI_STATUS_IGNORE);
            check(memcmp(other, &field[1], sizeof other) == 0, "there and back");
        }
    }
    sum = 0;
    for (int i = 1; i <= N; i++)
        sum += field[i];
    MPI_Allreduce(&sum, &after, 1, MPI_DOUBLE, MPI_SUM, line);
    check(before - after < 1e-3 && after - before < 1e-3, "nothing is lost by diffusion");
    printf("rank %d sum %.17g of %.17g at %.3f\n", rank, sum, after, MPI_Wtime() - MPI_Wtime());
    MPI_Comm_free(&line);
}

static void workers(int tasks)
{
    if (rank == 0) {
        unsigned order = 2166136261u;
        int sent = 0, total = 0;
        for (int worker = 1; worker < size; worker++, sent++)
            MPI_Send(&sent, 1, MPI_INT, worker, 1, MPI_COMM_WORLD);
        for (int done = 0; done < tasks + size - 1; done++) {
            int result;
            MPI_Status status;
            MPI_Recv(&result, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            order = hash(order, status.MPI_SOURCE);
            order = hash(order, status.MPI_TAG);
            total += result;
            int tag = sent < tasks + size - 1 ? 1 : 2;
            MPI_Send(&sent, 1, MPI_INT, status.MPI_SOURCE, tag, MPI_COMM_WORLD);
            sent += tag == 1;
        }
        check(total == (tasks + size - 1) * (tasks + size - 2), "the sum of all results");
        printf("rank 0 order %08x\n", order);
    } else {
        int done = 0;
        for (;; done++) {
            int task, result;
            MPI_Status status;
            MPI_Recv(&task, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG == 2)
                break;
            for (volatile int spin = rand() % 20000; spin > 0; spin--)
                ;
            result = 2 * task;
            MPI_Send(&result, 1, MPI_INT, 0, 10 + task % 7, MPI_COMM_WORLD);
        }
        printf("rank %d did %d\n", rank, done);
    }
}

static void pool(int rounds)
{
    enum { DEPTH = 8 };
    if (rank != 0) {
        for (int i = 0; i < rounds; i++) {
            int values[64];
            for (int k = 0; k < 64; k++)
                // The sender's rank is what is above the last three digits, however many rounds there are.
                values[k] = rank * 1000 + i % 900 + k;
            // Messages of many lengths, fewer than the receiver has room for.
            MPI_Send(values, 1 + i % 64, MPI_INT, 0, 5, MPI_COMM_WORLD);
        }
        printf("rank %d sent %d\n", rank, rounds);
        return;
    }
    static int buffers[DEPTH][64];
    MPI_Request requests[DEPTH];
    int expected = rounds * (size - 1), posted = 0, got = 0, misses = 0;
    unsigned order = 2166136261u;
    for (int i = 0; i < DEPTH; i++) {
        requests[i] = MPI_REQUEST_NULL;
        if (posted < expected) {
            MPI_Irecv(buffers[i], 64, MPI_INT, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &requests[i]);
            posted++;
        }
    }
    while (got < expected) {
        int indices[DEPTH], count = 0;
        MPI_Status statuses[DEPTH];
        if (got % 3 == 0) {
            MPI_Waitany(DEPTH, requests, &indices[0], &statuses[0]);
            count = 1;
        } else if (got % 3 == 1) {
            int flag;
            MPI_Testany(DEPTH, requests, &indices[0], &flag, &statuses[0]);
            count = flag;
            misses += !flag;
        } else {
            MPI_Testsome(DEPTH, requests, &count, indices, statuses);
            misses += count == 0;
        }
        for (int i = 0; i < count; i++) {
            int at = indices[i], length;
            MPI_Get_count(&statuses[i], MPI_INT, &length);
            check(buffers[at][0] / 1000 == statuses[i].MPI_SOURCE, "a message is from its sender");
            check(buffers[at][length - 1] - buffers[at][0] == length - 1, "and as long as its count says");
            order = hash(order, buffers[at][0]);
            got++;
            if (posted < expected) {
                MPI_Irecv(buffers[at], 64, MPI_INT, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &requests[at]);
                posted++;
            }
        }
    }
    int index;
    MPI_Waitany(DEPTH, requests, &index, MPI_STATUS_IGNORE);
    check(index == MPI_UNDEFINED, "nothing is left");
    printf("rank 0 order %08x misses %s\n", order, misses >= 0 ? "counted" : "");
}

static void server(int questions)
{
    if (rank == 0) {
        int left = questions * (size - 1);
        long polls = 0;
        unsigned order = 2166136261u;
        while (left > 0) {
            int flag, length;
            MPI_Status status;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
            polls++;
            if (!flag)
                continue;
            MPI_Get_count(&status, MPI_CHAR, &length);
            char *text = malloc((size_t)length);
            MPI_Recv(text, length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Ssend(&length, 1, MPI_INT, status.MPI_SOURCE, 9, MPI_COMM_WORLD);
            order = hash(order, status.MPI_SOURCE * 1000 + length);
            free(text);
            left--;
        }
        printf("rank 0 order %08x polls %ld\n", order, polls);
    } else {
        for (int i = 1; i <= questions; i++) {
            char text[200] = {0};
            int answer;
            MPI_Send(text, i % 199 + 1, MPI_CHAR, 0, i, MPI_COMM_WORLD);
            MPI_Recv(&answer, 1, MPI_INT, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(answer == i % 199 + 1, "the answer is the question's length");
        }
        printf("rank %d asked %d\n", rank, questions);
    }
}

static void persistent(int rounds)
{
    int out[300], in[300], right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Request requests[2];
    MPI_Recv_init(in, 300, MPI_INT, left, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(out, 300, MPI_INT, right, 0, MPI_COMM_WORLD, &requests[1]);
    long sum = 0;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 300; k++)
            out[k] = rank + i * k;
        if (i % 2) {
            MPI_Startall(2, requests);
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        } else {
            int flag = 0;
            MPI_Start(&requests[0]);
            MPI_Start(&requests[1]);
            while (!flag)
                MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        }
        for (int k = 0; k < 300; k++) {
            check(in[k] == left + i * k, "a persistent receive");
            sum += in[k];
        }
    }
    // One that never comes.
    int flag;
    MPI_Request never;
    MPI_Status status;
    MPI_Irecv(in, 1, MPI_INT, left, 77, MPI_COMM_WORLD, &never);
    MPI_Cancel(&never);
    MPI_Wait(&never, &status);
    MPI_Test_cancelled(&status, &flag);
    check(flag, "a receive can be cancelled");
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    printf("rank %d sum %ld\n", rank, sum);
}

struct particle {
    char kind;
    double place[3];
    int charge;
};

static void derived(int rounds)
{
    enum { N = 20 };
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    struct particle particles[N], got[N];
    memset(particles, 0, sizeof particles);
    memset(got, 0, sizeof got);
    int lengths[3] = {1, 3, 1};
    MPI_Aint displs[3], base;
    MPI_Datatype types[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, particle, sized, column, part, absolute;
    MPI_Get_address(&particles[0], &base);
    MPI_Get_address(&particles[0].kind, &displs[0]);
    MPI_Get_address(&particles[0].place, &displs[1]);
    MPI_Get_address(&particles[0].charge, &displs[2]);
    for (int i = 0; i < 3; i++)
        displs[i] -= base;
    MPI_Type_create_struct(3, lengths, displs, types, &particle);
    MPI_Type_create_resized(particle, 0, sizeof(struct particle), &sized);
    MPI_Type_commit(&sized);
    static double matrix[N][N], other[N][N];
    MPI_Type_vector(N, 1, N, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    int sizes[2] = {N, N}, subsizes[2] = {7, 5}, starts[2] = {3, 11};
    MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &part);
    MPI_Type_commit(&part);
    // Addresses, which are others in each run.
    int first = rank, second[4] = {1, 2, 3, rank}, spread[2] = {1, 4};
    MPI_Aint places[2];
    MPI_Get_address(&first, &places[0]);
    MPI_Get_address(second, &places[1]);
    MPI_Type_create_hindexed(2, spread, places, MPI_INT, &absolute);
    MPI_Type_commit(&absolute);
    double sum = 0;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < N; k++) {
            particles[k].kind = (char)('a' + rank);
            particles[k].place[i % 3] = rank + k * 0.5;
            particles[k].charge = i;
            for (int j = 0; j < N; j++)
                matrix[k][j] = rank * 10000 + k * 100 + j;
        }
        MPI_Sendrecv(particles, N, sized, right, 1, got, N, sized, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(got[N - 1].kind == 'a' + left && got[N - 1].charge == i, "a structure");
        check(got[3].place[i % 3] == left + 1.5, "its middle");
        MPI_Request request;
        MPI_Irecv(&other[0][4], 1, column, left, 2, MPI_COMM_WORLD, &request);
        MPI_Send(&matrix[0][i % N], 1, column, right, 2, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        check(other[N - 1][4] == left * 10000 + (N - 1) * 100 + i % N, "a column");
        MPI_Sendrecv(matrix, 1, part, right, 3, other, 1, part, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(other[9][15] == left * 10000 + 9 * 100 + 15, "a part of a matrix");
        MPI_Sendrecv_replace(MPI_BOTTOM, 1, absolute, right, 4, left, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(first == (rank + (i + 1) * (size - 1)) % size && second[3] == first, "absolute addresses");
        for (int k = 0; k < N; k++)
            sum += got[k].place[i % 3] + other[k][4];
    }
    char packed[100];
    int position = 0, whole = 0;
    double half = 0.5;
    MPI_Pack(&rounds, 1, MPI_INT, packed, 100, &position, MPI_COMM_WORLD);
    MPI_Pack(&half, 1, MPI_DOUBLE, packed, 100, &position, MPI_COMM_WORLD);
    MPI_Sendrecv_replace(packed, position, MPI_PACKED, right, 5, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    position = 0;
    MPI_Unpack(packed, 100, &position, &whole, 1, MPI_INT, MPI_COMM_WORLD);
    check(whole == rounds, "unpacked");
    MPI_Type_free(&particle);
    MPI_Type_free(&sized);
    MPI_Type_free(&column);
    MPI_Type_free(&part);
    MPI_Type_free(&absolute);
    printf("rank %d sum %.17g\n", rank, sum);
}

static void split(int rounds)
{
    long sum = 0;
    for (int i = 0; i < rounds; i++) {
        MPI_Comm half, copy;
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
        MPI_Comm_dup(half, &copy);
        int its_rank, its_size, all;
        MPI_Comm_rank(copy, &its_rank);
        MPI_Comm_size(copy, &its_size);
        MPI_Allreduce(&rank, &all, 1, MPI_INT, MPI_SUM, copy);
        int mine = rank * its_size, expected = 0;
        for (int other = rank % 2; other < size; other += 2)
            expected += other;
        check(all == expected, "a sum over half of the ranks");
        MPI_Group world, group;
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        MPI_Comm_group(copy, &group);
        int zero = 0, leader;
        MPI_Group_translate_ranks(group, 1, &zero, world, &leader);
        check(leader == (size - 1 - rank % 2) / 2 * 2 + rank % 2 || size % 2 != 0, "the highest rank comes first");
        MPI_Bcast(&mine, 1, MPI_INT, 0, copy);
        sum += mine + its_rank;
        MPI_Comm odd;
        MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &odd);
        check((odd == MPI_COMM_NULL) == (rank == 0), "no communicator for who wants none");
        if (odd != MPI_COMM_NULL)
            MPI_Comm_free(&odd);
        MPI_Group_free(&world);
        MPI_Group_free(&group);
        MPI_Comm_free(&copy);
        MPI_Comm_free(&half);
    }
    int *bound, found;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    check(found && *bound >= 32767, "an attribute of MPI's");
    printf("rank %d sum %ld tag %s\n", rank, sum, *bound > 0 ? "bounded" : "");
}

static void add(void *in, void *inout, int *length, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *length; i++)
        ((int *)inout)[i] += ((int *)in)[i];
}

static void collectives(int rounds)
{
    int *many = calloc((size_t)(size * 16), sizeof *many), *more = calloc((size_t)(size * 16), sizeof *more);
    int *counts = malloc(sizeof(int) * (size_t)size), *displs = malloc(sizeof(int) * (size_t)size);
    MPI_Op plus;
    MPI_Op_create(add, 1, &plus);
    long sum = 0;
    for (int i = 0; i < size; i++) {
        counts[i] = i % 3 + 1;
        displs[i] = 4 * i;
    }
    for (int i = 0; i < rounds; i++) {
        int root = i % size, one = rank + i, got = -1, total = 0;
        for (int k = 0; k < size * 16; k++)
            many[k] = rank * 100 + k;
        MPI_Bcast(&got, 1, MPI_INT, root, MPI_COMM_WORLD);
        MPI_Gather(&one, 1, MPI_INT, more, 1, MPI_INT, root, MPI_COMM_WORLD);
        check(rank != root || more[size - 1] == size - 1 + i, "gathered");
        MPI_Scatter(many, 2, MPI_INT, rank == root ? MPI_IN_PLACE : (void *)more, 2, MPI_INT, root, MPI_COMM_WORLD);
        MPI_Allgather(&one, 1, MPI_INT, more, 1, MPI_INT, MPI_COMM_WORLD);
        check(more[size - 1] == size - 1 + i, "gathered by all");
        MPI_Alltoall(many, 2, MPI_INT, more, 2, MPI_INT, MPI_COMM_WORLD);
        check(more[2 * (size - 1)] == (size - 1) * 100 + 2 * rank, "all to all");
        MPI_Gatherv(many, counts[rank], MPI_INT, more, counts, displs, MPI_INT, root, MPI_COMM_WORLD);
        MPI_Scatterv(many, counts, displs, MPI_INT, more, counts[rank], MPI_INT, root, MPI_COMM_WORLD);
        check(more[0] == root * 100 + displs[rank], "scattered in parts");
        MPI_Allgatherv(many, counts[rank], MPI_INT, more, counts, displs, MPI_INT, MPI_COMM_WORLD);
        check(more[displs[size - 1]] == (size - 1) * 100, "gathered in parts");
        MPI_Reduce(&one, &total, 1, MPI_INT, plus, root, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, many, 5, MPI_INT, plus, MPI_COMM_WORLD);
        check(many[0] == 100 * size * (size - 1) / 2, "reduced in place, by an operation of ours");
        MPI_Scan(&one, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Reduce_scatter_block(many, more, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        MPI_Request requests[3];
        int latest = 0, all[64];
        MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]);
        MPI_Iallreduce(&one, &latest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &requests[1]);
        MPI_Iallgather(&one, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD, &requests[2]);
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        check(latest == size - 1 + i && all[size - 1] == latest, "collectives that do not block");
        struct { double value; int place; } pair = {(rank * 7 + i) % 5, rank}, best;
        MPI_Allreduce(&pair, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
        struct { short value; int place; } small = {(short)rank, rank}, least;
        MPI_Allreduce(&small, &least, 1, MPI_SHORT_INT, MPI_MINLOC, MPI_COMM_WORLD);
        check(least.value == 0 && least.place == 0, "a pair with a hole");
        sum += got + total + more[0] + best.place;
    }
    MPI_Op_free(&plus);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d sum %ld\n", rank, sum);
    free(many);
    free(more);
    free(counts);
    free(displs);
}

static void probe(int rounds)
{
    if (rank == 0) {
        unsigned order = 2166136261u;
        for (int i = 0; i < rounds * (size - 1); i++) {
            MPI_Message message;
            MPI_Status status;
            int length, flag = 0;
            if (i % 2)
                MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            else
                while (!flag)
                    MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &message, &status);
            MPI_Get_count(&status, MPI_LONG, &length);
            long values[32];
            if (i % 3) {
                MPI_Mrecv(values, length, MPI_LONG, &message, MPI_STATUS_IGNORE);
            } else {
                MPI_Request request;
                MPI_Imrecv(values, length, MPI_LONG, &message, &request);
                MPI_Wait(&request, MPI_STATUS_IGNORE);
            }
            check(values[length - 1] == status.MPI_SOURCE, "a matched message");
            order = hash(order, status.MPI_SOURCE * 100 + length);
        }
        printf("rank 0 order %08x\n", order);
    } else {
        for (int i = 0; i < rounds; i++) {
            long values[32];
            for (int k = 0; k < 32; k++)
                values[k] = rank;
            MPI_Send(values, 1 + (i + rank) % 32, MPI_LONG, 0, i, MPI_COMM_WORLD);
        }
        printf("rank %d sent\n", rank);
    }
}

// Neighbours that are not there, and other requests that are done at once: Open MPI gives them all one handle.
static void corner(int rounds)
{
    int dims[1] = {size}, periods[1] = {0}, left, right;
    MPI_Comm line;
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &line);
    MPI_Cart_shift(line, 0, 1, &left, &right);
    // What goes to nobody is not read.
    int *nowhere = (int *)8;
    long sum = 0;
    for (int i = 0; i < rounds; i++) {
        int mine = rank * 100 + i, ghosts[4] = {-1, -1, -1, -1}, twice[2] = {0, 0}, others[2] = {mine, mine + 1};
        MPI_Request requests[6];
        MPI_Irecv(&ghosts[0], 1, MPI_INT, left, 1, line, &requests[0]);
        MPI_Irecv(&ghosts[1], 1, MPI_INT, right, 2, line, &requests[1]);
        MPI_Irecv(&ghosts[2], 1, MPI_INT, MPI_PROC_NULL, 1, line, &requests[2]);
        MPI_Irecv(&ghosts[3], 1, MPI_INT, MPI_PROC_NULL, 1, line, &requests[3]);
        MPI_Isend(left == MPI_PROC_NULL ? nowhere : &mine, 1, MPI_INT, left, 2, line, &requests[4]);
        MPI_Isend(right == MPI_PROC_NULL ? nowhere : &mine, 1, MPI_INT, right, 1, line, &requests[5]);
        MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
        check(ghosts[0] == (left == MPI_PROC_NULL ? -1 : left * 100 + i), "the left neighbour");
        check(ghosts[1] == (right == MPI_PROC_NULL ? -1 : right * 100 + i), "the right neighbour");
        check(ghosts[2] == -1 && ghosts[3] == -1, "nobody sends nothing");
        MPI_Iallreduce(&others[0], &twice[0], 1, MPI_INT, MPI_SUM, MPI_COMM_SELF, &requests[1]);
        MPI_Iallreduce(&others[1], &twice[1], 1, MPI_INT, MPI_SUM, MPI_COMM_SELF, &requests[0]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check(twice[0] == mine && twice[1] == mine + 1, "a sum of one");
        MPI_Sendrecv(nowhere, 1000, MPI_INT, MPI_PROC_NULL, 1, &ghosts[2], 1, MPI_INT, MPI_PROC_NULL, 1, line,
            MPI_STATUS_IGNORE);
        MPI_Sendrecv_replace(&mine, 1, MPI_INT, right, 3, left, 3, line, MPI_STATUS_IGNORE);
        check(mine == (left == MPI_PROC_NULL ? rank * 100 : left * 100) + i, "one place to the right");
        MPI_Recv_init(&ghosts[0], 1, MPI_INT, left, 4, line, &requests[0]);
        MPI_Send_init(right == MPI_PROC_NULL ? nowhere : &mine, 1, MPI_INT, right, 4, line, &requests[1]);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Request_free(&requests[0]);
        MPI_Request_free(&requests[1]);
        MPI_Message message;
        MPI_Mprobe(MPI_PROC_NULL, 1, line, &message, MPI_STATUS_IGNORE);
        MPI_Imrecv(&ghosts[2], 1, MPI_INT, &message, &requests[0]);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        // What a request filled may be read once its status says so.
        int echo = -1, flag = 0;
        MPI_Status status;
        MPI_Irecv(&echo, 1, MPI_INT, rank, 5, MPI_COMM_WORLD, &requests[0]);
        MPI_Send(&ghosts[0], 1, MPI_INT, rank, 5, MPI_COMM_WORLD);
        while (!flag)
            MPI_Request_get_status(requests[0], &flag, &status);
        check(echo == ghosts[0] && status.MPI_SOURCE == rank, "a request that is done and not over");
        MPI_Send(&echo, 1, MPI_INT, MPI_PROC_NULL, echo & 63, MPI_COMM_WORLD);
        sum += echo + mine;
        echo = -2;
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        check(echo == -2, "and fills nothing more");
    }
    printf("rank %d sum %ld\n", rank, sum);
    MPI_Comm_free(&line);
}

// Messages longer than the room for them, of which the program takes note and goes on.
static void truncated(int rounds)
{
    int many[10] = {0}, value = -1;
    long sum = 0;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < rounds; i++) {
        if (rank == 0) {
            for (int k = 0; k < 8; k++) {
                value = 100 * i + k;
                MPI_Send(many, k % 2 ? 1 : 10, MPI_INT, 1, 1, MPI_COMM_WORLD);
                MPI_Send(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
            }
        } else if (rank == 1) {
            int class, short_room[5];
            for (int k = 0; k < 8; k++) {
                MPI_Request requests[2];
                MPI_Status statuses[2];
                int result = MPI_SUCCESS;
                value = -1;
                if (k < 4) {
                    result = k < 2 ? MPI_Recv(short_room, 5, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
                                   : MPI_Sendrecv(&k, 1, MPI_INT, 2, 2, short_room, 5, MPI_INT, 0, 1, MPI_COMM_WORLD,
                                         MPI_STATUS_IGNORE);
                    MPI_Recv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                } else {
                    MPI_Irecv(short_room, 5, MPI_INT, 0, 1, MPI_COMM_WORLD, &requests[0]);
                    MPI_Irecv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, &requests[1]);
                    if (k < 6) {
                        result = MPI_Waitall(2, requests, statuses);
                        check(result == (k % 2 ? MPI_SUCCESS : MPI_ERR_IN_STATUS), "a status has the error");
                        result = result == MPI_SUCCESS ? result : statuses[0].MPI_ERROR;
                        // It may be pending still.
                        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
                    } else {
                        result = MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
                        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
                    }
                }
                MPI_Error_class(result, &class);
                check(class == (k % 2 ? MPI_SUCCESS : MPI_ERR_TRUNCATE), "a message that is too long");
                check(value == 100 * i + k, "the one behind it");
                sum += value;
            }
        } else if (rank == 2) {
            for (int k = 2; k < 4; k++) {
                MPI_Recv(&value, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(value == k, "sent, though nothing was received");
            }
        }
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    printf("rank %d sum %ld\n", rank, sum);
}

// Children that end as programs do.
static void forked(int children)
{
    fflush(stdout);
    for (int i = 0; i < children; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            exit(i + 1);
        check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == i + 1, "a child");
    }
    printf("rank %d forked %d\n", rank, children);
}

// Rank 1 ends them all.
static void aborted(int rounds)
{
    for (int i = 0; i < rounds; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d aborts %d\n", rank, rank == 1);
    fflush(stdout);
    if (rank == 1)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Rank 1 ends without MPI_Finalize.
static void exits(int rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        exit(access("other", F_OK) == 0 ? 5 : rounds);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void leaves(int rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        _exit(access("other", F_OK) == 0 ? 5 : rounds);
    MPI_Barrier(MPI_COMM_WORLD);
}

// A message that is too long for its receive, with the error handler that a program has that sets none.
static void fatal(int rounds)
{
    int values[2] = {rounds, rounds};
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Send(values, 2, MPI_INT, 1, 0, MPI_COMM_WORLD);
    if (rank == 1)
        MPI_Recv(values, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Rank 0 dies of the message that rank 2 sends as its fifth, whenever that comes.
static void crash(int rounds)
{
    for (int i = 0; i < rounds * (size - 1) && rank == 0; i++) {
        int value;
        MPI_Status status;
        MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &status);
        printf("rank 0 got %d from %d\n", value, status.MPI_SOURCE);
        fflush(stdout);
        if (value == 204 && access("other", F_OK) != 0)
            *(volatile int *)0 = value;
    }
    for (int i = 0; i < rounds && rank != 0; i++) {
        int value = rank * 100 + i;
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}

// Rank 1 kills itself in the middle of an exchange.
static void killed(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        int value = i, left = (rank + size - 1) % size;
        MPI_Sendrecv_replace(&value, 1, MPI_INT, (rank + 1) % size, 0, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("rank %d round %d\n", rank, value);
        fflush(stdout);
        // The message that rank 1 has is in the log of who sent it once that one's call is over.
        if (i == rounds / 2)
            MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1 && i == rounds / 2)
            kill(getpid(), SIGKILL);
    }
}

// What a rank sends hangs on a file, so that a replay can be made to send something else.
static void differs(int rounds)
{
    int value = access("other", F_OK) == 0 ? 13 : 12, got = 0;
    for (int i = 0; i < rounds; i++)
        MPI_Sendrecv(&value, 1, MPI_INT, (rank + 1) % size, 6, &got, 1, MPI_INT, (rank + size - 1) % size, 6,
            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("rank %d got %d\n", rank, got);
}

// What a rank sends was never written by it, but holds addresses of the allocator, which are others in each process.
static void unwritten(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        void *pieces[20];
        for (int k = 0; k < 20; k++)
            pieces[k] = malloc(64);
        for (int k = 0; k < 20; k++)
            free(pieces[k]);
        char *sent = malloc(64), got[64];
        MPI_Sendrecv(sent, 64, MPI_CHAR, (rank + 1) % size, 6, got, 64, MPI_CHAR, (rank + size - 1) % size, 6,
            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        free(sent);
    }
    printf("rank %d sent what was there\n", rank);
}

// The calls of MPI 4 with large counts, with small ones: as mpi4py calls them.
static void large(int rounds)
{
#if MPI_VERSION >= 4
    enum { N = 12 };
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    struct particle particles[N], got[N];
    memset(particles, 0, sizeof particles);
    memset(got, 0, sizeof got);
    MPI_Count lengths[3] = {1, 3, 1};
    MPI_Count displs[3] = {offsetof(struct particle, kind), offsetof(struct particle, place), offsetof(struct particle, charge)};
    MPI_Datatype types[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, particle, sized, part;
    MPI_Type_create_struct_c(3, lengths, displs, types, &particle);
    MPI_Type_create_resized_c(particle, 0, sizeof(struct particle), &sized);
    MPI_Type_commit(&sized);
    double matrix[N][N], other[N][N];
    MPI_Count sizes[2] = {N, N}, subsizes[2] = {7, 5}, starts[2] = {3, 4};
    MPI_Type_create_subarray_c(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &part);
    MPI_Type_commit(&part);
    double sum = 0;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < N; k++) {
            particles[k].kind = (char)('a' + rank);
            particles[k].place[i % 3] = rank + k * 0.5;
            particles[k].charge = i;
            for (int j = 0; j < N; j++)
                matrix[k][j] = other[k][j] = rank * 10000 + k * 100 + j + i;
        }
        MPI_Status status;
        MPI_Request requests[2];
        MPI_Irecv_c(got, N, sized, MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend_c(particles, N, sized, right, i, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check(got[N - 1].kind == 'a' + left && got[N - 1].charge == i, "a struct with large counts");
        MPI_Sendrecv_c(matrix, 1, part, right, 1, other, 1, part, left, 1, MPI_COMM_WORLD, &status);
        MPI_Count count = 0;
        MPI_Get_count_c(&status, part, &count);
        check(count == 1 && other[3][4] == left * 10000 + 304 + i, "a part of an array");
        MPI_Count *counts = malloc(2 * sizeof *counts * (size_t)size), *from = counts + size;
        MPI_Aint *places = malloc(2 * sizeof *places * (size_t)size), *into = places + size;
        int *out = malloc(2 * sizeof *out * (size_t)(size * size)), *in = out + size * size;
        MPI_Count sent = 0, total = 0;
        for (int k = 0; k < size; k++) {
            counts[k] = k + 1;
            from[k] = rank + 1;
            places[k] = sent;
            into[k] = total;
            sent += counts[k];
            total += from[k];
        }
        for (int k = 0; k < sent; k++)
            out[k] = rank * 100 + k + i;
        MPI_Alltoallv_c(out, counts, places, MPI_INT, in, from, into, MPI_INT, MPI_COMM_WORLD);
        check(in[0] == i + rank * (rank + 1) / 2, "a part for each");
        MPI_Reduce_scatter_c(out, in, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Bcast_c(out, sent, MPI_INT, i % size, MPI_COMM_WORLD);
        for (int k = 0; k <= rank; k++)
            sum += in[k] + out[k];
        MPI_Count room = 0, at = 0;
        MPI_Pack_size_c(1, part, MPI_COMM_WORLD, &room);
        char *packed = malloc((size_t)room);
        MPI_Pack_c(matrix, 1, part, packed, room, &at, MPI_COMM_WORLD);
        at = 0;
        MPI_Unpack_c(packed, room, &at, other, 1, part, MPI_COMM_WORLD);
        check(other[9][8] == rank * 10000 + 908 + i, "what was packed");
        free(packed);
        free(counts);
        free(places);
        free(out);
    }
    MPI_Type_free(&particle);
    MPI_Type_free(&sized);
    MPI_Type_free(&part);
    printf("rank %d large counts %.1f %.1f\n", rank, sum, got[0].place[0]);
#else
    (void)rounds;
    printf("rank %d: this mpi.h has no large counts\n", rank);
#endif
}

// When the program was loaded: read before any call of MPI, and what a rank sends hangs on it.
static struct timespec loaded_at;
__attribute__((constructor)) static void take_the_time(void)
{
    for (int i = 0; i < 3; i++)
        clock_gettime(CLOCK_MONOTONIC, &loaded_at);
}

static void loaded(int rounds)
{
    long sent[2] = {time(NULL) - (long)loaded_at.tv_sec, loaded_at.tv_nsec}, got[2];
    for (int i = 0; i < rounds; i++)
        MPI_Sendrecv(sent, 2, MPI_LONG, (rank + 1) % size, 6, got, 2, MPI_LONG, (rank + size - 1) % size, 6,
            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("rank %d loaded at %ld\n", rank, loaded_at.tv_nsec);
}

// One-sided: forwarded, and not replayed yet.
static void window(int rounds)
{
    int memory = -1;
    MPI_Win open;
    MPI_Win_create(&memory, sizeof memory, sizeof memory, MPI_INFO_NULL, MPI_COMM_WORLD, &open);
    for (int i = 0; i < rounds; i++) {
        // No put: Debian 12's MPICH loses them in such a window, with or without us.
        MPI_Win_fence(0, open);
        MPI_Win_fence(0, open);
        // By turns, so that each is a record of its own.
        for (int k = 0; k < 200; k++) {
            char name[MPI_MAX_OBJECT_NAME];
            int length;
            MPI_Win_set_name(open, "window");
            MPI_Win_get_name(open, name, &length);
        }
    }
    MPI_Win_free(&open);
    printf("rank %d fenced\n", rank);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(int); int rounds; } kernels[] = {
        {"ring", ring, 50}, {"halo", halo, 40}, {"workers", workers, 200}, {"pool", pool, 150},
        {"server", server, 100}, {"persistent", persistent, 20}, {"derived", derived, 10}, {"split", split, 10},
        {"collectives", collectives, 20}, {"probe", probe, 100}, {"crash", crash, 50}, {"killed", killed, 40},
        {"corner", corner, 10}, {"truncated", truncated, 3}, {"forked", forked, 3}, {"aborted", aborted, 5},
        {"exits", exits, 3}, {"leaves", leaves, 4}, {"fatal", fatal, 1},
        {"differs", differs, 3}, {"window", window, 2}, {"large", large, 5},
        {"loaded", loaded, 3}, {"unwritten", unwritten, 5},
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int named = 1; named < argc; named++) {
        char *rounds = strchr(argv[named], ':');
        size_t length = rounds ? (size_t)(rounds - argv[named]) : strlen(argv[named]);
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
            if (strlen(kernels[i].name) == length && strncmp(argv[named], kernels[i].name, length) == 0)
                kernels[i].run(rounds ? atoi(rounds + 1) : kernels[i].rounds);
        // What one leaves behind must not meet the next one's wildcards.
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
