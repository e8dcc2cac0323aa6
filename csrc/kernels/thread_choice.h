// How many of its threads a pool computes the next graph with. Threads wait for each other after each operation, so that
// one thread whose core another program has makes all of them as slow as that program lets it be: then fewer are faster.
//
// What threads waited says that cores are shared, and the clock what is faster: for a few graphs another number is tried,
// and kept if they took less than such graphs did before. Where fewer are in use, more are tried now and then. The graphs'
// numbers do not depend on it: each row of a product, and each head, is the work of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

class pyllama_spec_thread_choice {
public:
    // For a graph that n_threads may compute. shape: equal for graphs that take equally long.
    int begin(uint64_t shape, int n_threads, int64_t now_ns);

    // After it: what all of its threads together waited in barriers, beyond what is usual.
    void end(int64_t now_ns, int64_t waited_ns);

    int64_t n_graphs      = 0;
    int64_t n_with_fewer  = 0;  // graphs that fewer threads computed than could have
    bool    is_contended() const;

private:
    struct cost {
        uint64_t shape    = 0;
        double   ns       = 0;  // at the present level; 0 where it is not known
        double   tried_ns = 0;  // the sum of those of a trial
        int      n_tried  = 0;
    };
    static constexpr size_t N_COSTS = 32;
    static constexpr int NO_TRIAL = -1;

    int  next_level(int step) const;
    void begin_trial(int64_t now_ns);
    void count_trial(cost & of, double ns, int64_t now_ns);
    void end_trial(bool is_faster, int64_t now_ns);

    cost    costs_[N_COSTS];
    int     n_threads_   = 1;   // of the graph
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
    double  tried_ns_    = 0;   // of a trial, and what its graphs took at the present level
    double  known_ns_    = 0;
    double  waited_ns_   = 0;   // fading sums
    double  computed_ns_ = 0;

public:
    pyllama_spec_thread_choice();
};
