#include "kernels/thread_choice.h"

#include <algorithm>

namespace {

// Levels in quarters of all threads; the last level is one thread.
constexpr int QUARTERS[] = { 4, 3, 2, 1, 0 };
constexpr int N_LEVELS   = 5;

// Contention limit, as a part of the threads' time. Threads with their own cores wait hardly longer than a barrier
// spins.
constexpr double CONTENDED = 0.1;
constexpr double MIN_NS    = 20e6;  // another program's time slice lasts some milliseconds
constexpr double FADE_NS   = 100e6;

constexpr int    N_COMPARED = 6;    // graphs compared in a trial
constexpr int    MAX_TRIED  = 24;
constexpr double FASTER     = 0.9;
constexpr double SLOWER     = 1.3;  // ends a trial after half of its graphs
constexpr double HOPELESS   = 3.0;
constexpr double NEWEST     = 0.25; // the weight of the newest of equal graphs in the average

// The pause between trials; each failed trial doubles it. It also limits the cost of trials to a twentieth of the time.
constexpr int64_t MIN_PAUSE_NS = 100'000'000;
constexpr int64_t MAX_PAUSE_NS = 2'000'000'000;
constexpr double  COST         = 20;
constexpr double  MAX_DEAR_NS  = 10e9;

int threads_at(int level, int n_threads) {
    return std::max(1, (n_threads * QUARTERS[level] + 3) / 4);
}

} // namespace

pyllama_spec_thread_choice::pyllama_spec_thread_choice() : pause_ns_(MIN_PAUSE_NS) {}

bool pyllama_spec_thread_choice::is_contended() const {
    return computed_ns_ >= MIN_NS && waited_ns_ > CONTENDED * computed_ns_;
}

// The next level in that direction with a different number of threads; the present level if there is none.
int pyllama_spec_thread_choice::next_level(int step) const {
    for (int level = level_ + step; level >= 0 && level < N_LEVELS; level += step) {
        if (threads_at(level, n_threads_) != threads_at(level_, n_threads_)) {
            return level;
        }
    }
    return level_;
}

void pyllama_spec_thread_choice::begin_trial(int64_t now_ns) {
    const int fewer = is_contended() ? next_level(1) : level_;
    const int more  = next_level(-1);
    const bool down = fewer != level_ && (more == level_ || last_step_ < 0);
    const int level = down ? fewer : more;
    if (level == level_) {
        return;
    }
    trial_      = level;
    last_step_  = down ? 1 : -1;
    tried_ns_   = known_ns_ = 0;
    n_compared_ = n_in_trial_ = 0;
    due_ns_     = now_ns;
}

int pyllama_spec_thread_choice::begin(uint64_t shape, int n_threads, int64_t now_ns) {
    n_threads_ = n_threads;
    shape_     = shape;
    begun_ns_  = now_ns;
    if (trial_ == NO_TRIAL && now_ns >= due_ns_) {
        begin_trial(now_ns);
    }
    n_used_ = threads_at(trial_ == NO_TRIAL ? level_ : trial_, n_threads);
    return n_used_;
}

void pyllama_spec_thread_choice::end(int64_t now_ns, int64_t waited_ns) {
    if (n_threads_ == 1) {
        return;
    }
    const double ns = (double) (now_ns - begun_ns_);
    cost & of = costs_[(shape_ ^ (shape_ >> 17)) % N_COSTS];
    if (of.shape != shape_) {
        of       = cost();
        of.shape = shape_;
    }
    if (trial_ != NO_TRIAL) {
        count_trial(of, ns, now_ns);
        return;
    }
    of.ns = of.ns == 0 ? ns : of.ns + NEWEST * (ns - of.ns);
    if (n_used_ > 1) {
        computed_ns_ += ns * n_used_;
        waited_ns_   += (double) waited_ns;
        if (computed_ns_ > FADE_NS) {
            computed_ns_ /= 2;
            waited_ns_   /= 2;
        }
    }
}

void pyllama_spec_thread_choice::count_trial(cost & of, double ns, int64_t now_ns) {
    n_in_trial_  += 1;
    of.tried_ns  += ns;
    of.n_tried   += 1;
    if (of.ns > 0 && n_used_ != threads_at(level_, n_threads_)) {
        n_compared_ += 1;
        tried_ns_   += ns;
        known_ns_   += of.ns;
    }
    const bool is_known = 2 * n_compared_ >= N_COMPARED;
    if (tried_ns_ > (is_known ? SLOWER : HOPELESS) * known_ns_ && tried_ns_ > MIN_NS) {
        end_trial(false, now_ns);
    } else if (n_compared_ >= N_COMPARED && tried_ns_ >= MIN_NS) {
        end_trial(tried_ns_ < FASTER * known_ns_, now_ns);
    } else if (n_in_trial_ >= MAX_TRIED && n_compared_ == 0) {
        end_trial(false, now_ns);
    }
}

void pyllama_spec_thread_choice::end_trial(bool is_faster, int64_t now_ns) {
    for (cost & of : costs_) {
        if (is_faster) {
            of.ns = of.n_tried > 0 ? of.tried_ns / of.n_tried : 0;
        }
        of.tried_ns = 0;
        of.n_tried  = 0;
    }
    if (is_faster) {
        level_       = trial_;
        waited_ns_   = computed_ns_ = 0;
        pause_ns_    = MIN_PAUSE_NS;
    } else {
        pause_ns_    = std::min(2 * pause_ns_, MAX_PAUSE_NS);
    }
    const double dear_ns = is_faster ? 0 : std::min(COST * (tried_ns_ - known_ns_), MAX_DEAR_NS);
    trial_  = NO_TRIAL;
    due_ns_ = now_ns + std::max(pause_ns_, (int64_t) dear_ns);
}
