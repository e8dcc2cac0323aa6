// Chooses how many of its threads a pool uses for the next graph. Threads wait for each other after each operation. If
// another program occupies the core of one thread, that thread delays all of them: then fewer threads are faster.
//
// Long waits indicate shared cores, and the clock decides which number is faster: a trial computes a few graphs with
// another number, which is kept if they took less time than equal graphs before. While fewer threads are used, more are
// tried now and then. On two cores with other programs, two threads decode SmolLM2-135M in BF16 at 42.8 tokens a second
// with this choice and 16.8 without beside one busy program, and at 30.1 and 13.4 beside tests and compilers (medians
// of five runs in turns). Results do not depend on the number: one thread computes each row of a product, and each head.
#pragma once

#include <cstddef>
#include <cstdint>

class pyllama_spec_thread_choice {
public:
    // Called before a graph that n_threads may compute. shape: equal for graphs that take equally long.
    int begin(uint64_t shape, int n_threads, int64_t now_ns);

    // Called after it: waited_ns is the time that all its threads waited in barriers, beyond the usual.
    void end(int64_t now_ns, int64_t waited_ns);

private:
    struct cost {
        uint64_t shape    = 0;
        double   ns       = 0;  // at the present level; 0 if unknown
        double   tried_ns = 0;  // sum over the graphs of a trial
        int      n_tried  = 0;
    };
    static constexpr size_t N_COSTS = 32;
    static constexpr int NO_TRIAL = -1;

    bool is_contended() const;
    int  next_level(int step) const;
    void begin_trial(int64_t now_ns);
    void count_trial(cost & of, double ns, int64_t now_ns);
    void end_trial(bool is_faster, int64_t now_ns);

    cost    costs_[N_COSTS];
    int     n_threads_   = 1;   // for the current graph
    int     n_used_      = 1;
    int     level_       = 0;
    int     trial_       = NO_TRIAL;
    int     last_step_   = -1;
    int     n_compared_  = 0;
    int     n_in_trial_  = 0;
    int64_t begun_ns_    = 0;
    int64_t due_ns_      = 0;
    int64_t pause_ns_;
    uint64_t shape_      = 0;
    double  tried_ns_    = 0;   // for a trial: its time, and the known time of the same graphs at the present level
    double  known_ns_    = 0;
    double  waited_ns_   = 0;   // sums that decay over time
    double  computed_ns_ = 0;

public:
    pyllama_spec_thread_choice();
};
