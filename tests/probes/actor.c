/* An engine worker for the battery: works in steps and reports each one, until SIGUSR1 makes it behave as told.
 *
 *   actor BEHAVIOUR      prints "s" per finished step on standard output
 *
 * Working behaviours go on computing without finishing a step; stuck ones do nothing useful any more. */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told = 0;
static pthread_barrier_t barrier;
static volatile int never = 0;
static volatile int behaving = 0; /* set by the main thread alone, before the barrier that the second one waits at */
static volatile double sink;
static const char *behaviour;

static void on_signal(int number) { (void)number; told = 1; }

/* One layer: a fresh output of 2 MiB is allocated, filled with arithmetic, given back. */
static void layer(int rounds) {
    size_t bytes = 2u << 20;
    float *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED) return;
    for (int r = 0; r < rounds; r++)
        for (size_t i = 0; i < bytes / sizeof(float); i++) out[i] = out[i] * 0.5f + (float)(i & 7);
    sink += out[123];
    munmap(out, bytes);
}

/* Decode that is bound by memory: weights are read again and again, nothing is allocated. */
static void stream(const char *weights, size_t bytes) {
    unsigned long sum = 0;
    for (size_t i = 0; i < bytes; i += 64) sum += (unsigned char)weights[i];
    sink += (double)sum;
}

static void nap(long nanoseconds) {
    struct timespec t = {0, nanoseconds};
    nanosleep(&t, NULL);
}

static void round_begins(void) { pthread_barrier_wait(&barrier); pthread_barrier_wait(&barrier); }

static void *second_thread(void *arg) {
    (void)arg;
    size_t bytes = 32u << 20;
    char *weights = NULL;
    if (!strcmp(behaviour, "bandwidth")) {
        weights = malloc(bytes);
        memset(weights, 1, bytes);
    }
    for (;;) {
        pthread_barrier_wait(&barrier);
        int now = behaving;
        pthread_barrier_wait(&barrier); /* the main thread can't change it before it was read */
        if (now && !strcmp(behaviour, "bandwidth")) {
            for (;;) { stream(weights, bytes); pthread_barrier_wait(&barrier); }
        }
        if (now && strcmp(behaviour, "layers")) {
            for (;;) pause();
        }
        layer(2);
    }
    return NULL;
}

/* A heartbeat as engines have them: it must not vouch for the main thread. */
static void *heartbeat(void *arg) {
    (void)arg;
    for (;;) nap(200 * 1000 * 1000);
    return NULL;
}

static void behave(void) {
    const char *b = behaviour;
    behaving = 1;
    round_begins();
    if (!strcmp(b, "layers"))
        for (;;) { layer(2); round_begins(); }
    if (!strcmp(b, "bandwidth")) {
        size_t bytes = 32u << 20;
        char *weights = malloc(bytes);
        memset(weights, 1, bytes);
        for (;;) { stream(weights, bytes); pthread_barrier_wait(&barrier); }
    }
    if (!strcmp(b, "single"))
        for (;;) layer(3);
    if (!strcmp(b, "spin"))
        while (!never) { }
    if (!strcmp(b, "yield"))
        while (!never) sched_yield();
    if (!strcmp(b, "barrier"))
        while (!never) __asm__ volatile("" ::: "memory");
    if (!strcmp(b, "poll"))
        for (;;) nap(1000 * 1000);
    if (!strcmp(b, "lock")) {
        static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
        pthread_mutex_lock(&m);
        pthread_mutex_lock(&m);
    }
    if (!strcmp(b, "pipe")) {
        int ends[2];
        char c;
        if (pipe(ends) == 0 && read(ends[0], &c, 1) < 0) exit(3);
    }
    if (!strcmp(b, "uninterruptible")) {
        /* the child must not outlive the killed actor: it holds the test run's stderr open */
        if (vfork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); sleep(600); _exit(0); }
    }
    if (!strcmp(b, "stop")) raise(SIGSTOP);
    if (!strcmp(b, "exit")) _exit(9);
    for (;;) pause();
}

int main(int argc, char **argv) {
    behaviour = argc > 1 ? argv[1] : "layers";
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    setvbuf(stdout, NULL, _IONBF, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, second_thread, NULL);
    pthread_create(&thread, NULL, heartbeat, NULL);
    while (!told) {
        for (int i = 0; i < 4 && !told; i++) { round_begins(); layer(2); }
        if (!told && write(1, "s\n", 2) < 0) return 2;
    }
    behave();
    return 0;
}
