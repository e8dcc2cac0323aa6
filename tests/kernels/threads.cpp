// How many threads compute, in made-up worlds with a clock of their own: what a graph takes with so many threads, and
// how much of their time they wait. Prints for each world: its name, the graphs of its last part that the best number
// of threads computed, out of how many, and the time of all graphs over that of the best number throughout.
#include "kernels/thread_choice.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

namespace {

struct taken {
    double ms;
    double waited;  // of the threads' time
};

// Of a graph of this shape, by so many threads, at this time in seconds.
using world = std::function<taken(int shape, int n_threads, double at_s)>;

struct setting {
    const char * name;
    int    n_threads;
    double seconds;
    std::vector<int> shapes;    // in turns
    world  takes;
    double noise;               // a graph takes up to so much more
};

// Work that divides among threads, and what each further thread costs.
double calm_ms(int shape, int n) { return shape * (1.0 / n + 0.001 * (n - 1)); }

taken calm(int shape, int n, double) { return { calm_ms(shape, n), 0.01 }; }

// Two threads on two cores that another program keeps busy.
taken busy(int shape, int n, double) {
    return n == 1 ? taken{ 2.0 * shape, 0 } : taken{ 12.0 * shape, 0.4 };
}

// Waits, and yet faster with both.
taken shared(int shape, int n, double) {
    return n == 1 ? taken{ 1.5 * shape, 0 } : taken{ 1.0 * shape, 0.25 };
}

taken comes_and_goes(int shape, int n, double at_s) {
    return at_s > 4 && at_s < 12 ? busy(shape, n, at_s) : calm(shape, n, at_s);
}

// A program on one core of eight: all eight wait for that one.
taken one_of_eight(int shape, int n, double) {
    return n > 7 ? taken{ 4 * calm_ms(shape, n), 0.6 } : taken{ calm_ms(shape, n), 0.02 };
}

int best_of(const setting & of, double at_s) {
    int best = 1;
    double least = 1e300;
    // Those that are tried: quarters.
    for (int n : { of.n_threads, (3 * of.n_threads + 3) / 4, (of.n_threads + 1) / 2, (of.n_threads + 3) / 4, 1 }) {
        double ms = 0;
        for (int shape : of.shapes) {
            ms += of.takes(shape, n, at_s).ms;
        }
        if (ms < least) {
            least = ms;
            best  = n;
        }
    }
    return best;
}

void run(const setting & of) {
    pyllama_spec_thread_choice choice;
    std::mt19937 random(1);
    std::uniform_real_distribution<double> more(1.0, 1.0 + of.noise);
    double at_ms = 0, best_ms = 0;
    int n_last = 0, n_best = 0;
    for (size_t i = 0; at_ms < 1e3 * of.seconds; ++i) {
        const int shape = of.shapes[i % of.shapes.size()];
        const int n     = choice.begin((uint64_t) shape, of.n_threads, (int64_t) (1e6 * at_ms));
        const int best  = best_of(of, at_ms / 1e3);
        const double times = more(random);
        const taken took = of.takes(shape, n, at_ms / 1e3);
        best_ms += times * of.takes(shape, best, at_ms / 1e3).ms;
        at_ms   += times * took.ms;
        choice.end((int64_t) (1e6 * at_ms), (int64_t) (1e6 * times * took.ms * took.waited * n));
        if (at_ms > 0.75 * 1e3 * of.seconds) {
            n_last += 1;
            n_best += n == best;
        }
    }
    std::printf("%s %d %d %.3f\n", of.name, n_best, n_last, at_ms / best_ms);
}

} // namespace

int main() {
    const setting worlds[] = {
        { "calm",            2, 10, { 10 },            calm,           0.2 },
        { "calm-many",      16, 10, { 10, 3, 25 },     calm,           0.2 },
        { "busy",            2, 20, { 10 },            busy,           0.2 },
        { "busy-noisy",      2, 20, { 10 },            busy,           2.0 },
        { "busy-tiny",       2, 20, { 1 },             busy,           0.5 },
        { "busy-mixed",      2, 20, { 1, 1, 1, 12, 2 }, busy,          0.5 },
        { "shared",          2, 20, { 10 },            shared,         0.2 },
        { "comes-and-goes",  2, 32, { 10 },            comes_and_goes, 0.2 },
        { "one-of-eight",    8, 20, { 40 },            one_of_eight,   0.2 },
    };
    for (const setting & of : worlds) {
        run(of);
    }
    return 0;
}
