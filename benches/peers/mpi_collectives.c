/* Collectives of an MPI library itself, for the bench `collectives`: one JSON line an operation and size, the form of the peers' collectives.py.
 *
 *   mpicc -O2 -o mpi_collectives mpi_collectives.c && mpirun -n 2 ./mpi_collectives LABEL BYTES...
 *
 * A label that ends in "-threads" asks for MPI_THREAD_MULTIPLE, as a program does whose threads all may call MPI.
 *
 * Bytes are what one rank contributes to an all-reduce, broadcast, all-to-all or message, and the full vector of an all-gather or
 * reduce-scatter. Time is that of one call, averaged over a window of calls in a row; the least window counts. Where a call takes long, as with
 * more ranks than cores under a library that spins, windows are shorter and fewer. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int rank, ranks;

/* Enough calls that a window takes more than a millisecond at 10 GB/s, so that starting it costs nothing. */
static int window(long bytes) {
    long n = 16000000 / (bytes + 2000);
    return n < 2 ? 2 : (int)n;
}

/* No window much longer than 50 ms: every rank takes rank 0's word for how long a call takes. */
static int fewer(int calls, double one) {
    MPI_Bcast(&one, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    double most = 0.05 / one;
    return most < 1 ? 1 : most < calls ? (int)most : calls;
}

/* Memory as the device it stands beside gives it: from 4 MiB it begins with a huge page and asks for them, below it begins with a page. */
static float *memory(long bytes) {
    void *at = NULL;
    int huge = bytes >= 4 << 20;
    if (posix_memalign(&at, huge ? 2 << 20 : 4096, bytes)) abort();
    if (huge) madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 0, bytes);
    return at;
}

enum { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, BROADCAST, PINGPONG, KINDS };
static const char *names[] = {"allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "pingpong"};

static void call(int kind, float *a, float *b, int count) {
    int part = count / ranks;
    switch (kind) {
    case ALLREDUCE: MPI_Allreduce(MPI_IN_PLACE, a, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(a, b, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALLGATHER: MPI_Allgather(b, part, MPI_FLOAT, a, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case ALLTOALL: MPI_Alltoall(a, part, MPI_FLOAT, b, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(a, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case PINGPONG: /* there and back: half of it is one way */
        if (rank == 0) {
            MPI_Send(a, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(b, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(b, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(a, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        }
        break;
    }
}

int main(int argc, char **argv) {
    const char *dash = argc > 1 ? strrchr(argv[1], '-') : NULL;
    int got, level = dash && !strcmp(dash, "-threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, level, &got);
    if (got < level) {
        fprintf(stderr, "%s: this library takes one thread at a time\n", argv[1]);
        MPI_Finalize();
        return 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 2; i < argc; i++) {
        long bytes = atol(argv[i]);
        int count = (int)(bytes / 4);
        float *a = memory(bytes), *b = memory(bytes);
        for (int kind = 0; kind < KINDS; kind++) {
            /* The first call also connects. */
            call(kind, a, b, count);
            double least = 1e9, start = MPI_Wtime(), now;
            int more = 1;
            for (int j = 0; j < 4; j++) call(kind, a, b, count);
            int k = fewer(window(bytes), (MPI_Wtime() - start) / 4);
            for (int w = 0; more; w++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double t = MPI_Wtime();
                for (int j = 0; j < k; j++) call(kind, a, b, count);
                now = MPI_Wtime();
                double one = (now - t) / k;
                if (w > 1 && one < least) least = one;
                more = (w < 5 && (w < 2 || now - start < 2)) || (now - start < 0.15 && w < 400);
                MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
            }
            double slowest;
            MPI_Reduce(&least, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            if (kind == PINGPONG) slowest /= 2;
            if (rank == 0)
                printf("{\"backend\": \"%s\", \"op\": \"%s\", \"bytes\": %ld, \"ranks\": %d, \"us_min\": %.4f}\n", argv[1], names[kind], bytes, ranks, slowest * 1e6);
            fflush(stdout);
        }
        free(a);
        free(b);
    }
    MPI_Finalize();
    return 0;
}
