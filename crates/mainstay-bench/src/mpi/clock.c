// Loaded into every arm, the base included: how long a rank was between MPI_Init and MPI_Finalize, and its processor time.
//
// Leaves "RANK.clock" in the folder MAINSTAY_BENCH_CLOCK: two numbers, in nanoseconds. Asks the kernel itself for the time: the
// recorder stands before the C library's functions.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int depth, finished;
static long long begun_ns, begun_cpu_ns;

static long long now_ns(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static long long cpu_ns(void)
{
    struct rusage used;
    syscall(SYS_getrusage, RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000ll
        + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000ll;
}

static void begin(void)
{
    begun_cpu_ns = cpu_ns();
    begun_ns = now_ns();
}

static void end(void)
{
    long long took_ns = now_ns() - begun_ns, used_ns = cpu_ns() - begun_cpu_ns;
    const char *folder = getenv("MAINSTAY_BENCH_CLOCK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[4096];
    if (!rank)
        rank = getenv("PMI_RANK");
    if (!folder || finished++)
        return;
    snprintf(path, sizeof path, "%s/%s.clock", folder, rank ? rank : "0");
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%lld %lld\n", took_ns, used_ns);
        fclose(file);
    }
}

// Fortran's layers call one name or the other, and a library may call itself by the second.
#define BEGINS(NAME, PARAMETERS, ARGUMENTS)                                                                    \
    int NAME PARAMETERS                                                                                        \
    {                                                                                                          \
        int (*real) PARAMETERS = (int (*) PARAMETERS)dlsym(RTLD_NEXT, #NAME);                                  \
        depth++;                                                                                               \
        int result = real ARGUMENTS;                                                                           \
        if (--depth == 0)                                                                                      \
            begin();                                                                                           \
        return result;                                                                                         \
    }
BEGINS(MPI_Init, (int *argc, char ***argv), (argc, argv))
BEGINS(PMPI_Init, (int *argc, char ***argv), (argc, argv))
BEGINS(MPI_Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))
BEGINS(PMPI_Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))

#define ENDS(NAME)                                                                                             \
    int NAME(void)                                                                                             \
    {                                                                                                          \
        int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, #NAME);                                            \
        if (depth++ == 0)                                                                                      \
            end();                                                                                             \
        int result = real();                                                                                   \
        depth--;                                                                                               \
        return result;                                                                                         \
    }
ENDS(MPI_Finalize)
ENDS(PMPI_Finalize)
