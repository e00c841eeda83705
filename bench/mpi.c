/* All-reduce (sum, f32, in place) of MPI, between processes on loopback.
 *
 *     mpicc -O3 bench/mpi.c -o bench/ring/target/mpi
 *     mpirun --oversubscribe --bind-to none --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo -np PEERS \
 *         bench/ring/target/mpi MEBIBYTES
 *
 * One JSON object: the median time of the slowest process, and CPU seconds per GiB and process, which include waiting:
 * processes of MPI poll. The sum is checked.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { CALLS = 12, WARM_UP = 2 };

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *one, const void *other) {
    double left = *(const double *)one, right = *(const double *)other;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    int rank, peers;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peers);
    if (argc != 2) {
        fprintf(stderr, "mpi MEBIBYTES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double mebibytes = atof(argv[1]);
    size_t count = (size_t)(mebibytes * (1 << 18)), middle = count / 2;
    float *vector = malloc(count * sizeof *vector);
    double times[CALLS], used = 0, used_by_all;
    for (int call = 0; call < WARM_UP + CALLS; call++) {
        for (size_t i = 0; i < count; i++) vector[i] = rank + i % 7;
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu = cpu_seconds(), start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, vector, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double time = MPI_Wtime() - start, slowest;
        cpu = cpu_seconds() - cpu;
        MPI_Allreduce(&time, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (vector[middle] != (float)(peers * (peers - 1) / 2 + peers * (long)(middle % 7))) {
            fprintf(stderr, "a wrong sum\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (call >= WARM_UP) {
            times[call - WARM_UP] = slowest;
            used += cpu;
        }
    }
    used /= CALLS;
    MPI_Reduce(&used, &used_by_all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(times, CALLS, sizeof *times, ascending);
        printf("{\"reduce_seconds\": %g, \"cpu_seconds_per_gib_and_peer\": %g}\n", (times[CALLS / 2 - 1] + times[CALLS / 2]) / 2,
               used_by_all / peers / (mebibytes / 1024));
    }
    free(vector);
    MPI_Finalize();
}
