#include "torch/faults/fault_board.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <type_traits>
#include <utility>

namespace isthmus::torch_backend {
namespace {

// Formats ascending ranks as runs: "0-3,8".
std::string ranks_text(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text << (first > 0 ? "," : "") << ranks[first];
    if (last > first) {
      text << '-' << ranks[last];
    }
    first = last + 1;
  }
  return text.str();
}

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPostPatience{500};
constexpr std::chrono::milliseconds kPollPause{50};
constexpr size_t kMostOthers = 8;  // how many ranks that reported one error names; it names all silent ranks
constexpr const char* kPostedKey = "posted";
constexpr const char* kReadKey = "read";
constexpr char kSeparator = '\x1f';  // of what describe() says and the error

std::string report_key(int rank) { return "report/" + std::to_string(rank); }

// Returns the count once it has reached `target`, or after `patience`.
int64_t wait_for_count(c10d::Store& store, const char* key, int64_t target, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (true) {
    const int64_t count = store.add(key, 0);
    if (count >= target || Clock::now() >= deadline) {
      return count;
    }
    std::this_thread::sleep_for(kPollPause);
  }
}

}  // namespace

std::string describe(const FaultReport& report) {
  return report.operation + " #" + std::to_string(report.sequence_number) +
         (report.tensor.empty() ? "" : " of " + report.tensor) + (report.unit.empty() ? "" : " of unit " + report.unit);
}

// Calls a store on its own thread, so that a store that does not answer (its host is stopped) blocks no caller beyond
// the timeout. The thread is never joined.
class FaultBoard::PatientStore {
 public:
  // The thread starts here, not with the first call: a process that has run out of memory by then could not start it.
  explicit PatientStore(c10::intrusive_ptr<c10d::Store> store) {
    state_->store = std::move(store);
    std::thread([state = state_] { state->run(); }).detach();
  }
  // Frees the store here unless it is in a call: a TCPStore that the thread freed later would still hold its port when
  // the process makes the next one, which then fails.
  ~PatientStore() {
    const std::lock_guard lock(state_->mutex);
    state_->store = nullptr;
    state_->changed.notify_one();
  }
  PatientStore(const PatientStore&) = delete;
  PatientStore& operator=(const PatientStore&) = delete;

  // Returns what `action` returns; nothing if it does not succeed within `timeout`. A late action still runs to its
  // end, so it must own what it refers to.
  template <typename Action, typename Result = std::invoke_result_t<Action, c10d::Store&>>
  std::optional<Result> call(Action action, std::chrono::milliseconds timeout) {
    const auto task = std::make_shared<std::packaged_task<Result(c10d::Store&)>>(std::move(action));
    std::future<Result> result = task->get_future();
    {
      const std::lock_guard lock(state_->mutex);
      state_->actions.emplace_back([task](c10d::Store& store) { (*task)(store); });
      state_->changed.notify_one();
    }
    if (result.wait_for(timeout) != std::future_status::ready) {
      return std::nullopt;
    }
    try {
      return result.get();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

 private:
  struct State {
    void run() {
      c10::intrusive_ptr<c10d::Store> clone;
      while (true) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !store || !actions.empty(); });
        if (!store) {
          return;
        }
        const auto action = std::move(actions.front());
        actions.pop_front();
        const auto original = clone ? nullptr : store;
        lock.unlock();
        if (!clone) {
          try {  // the clone has its own connection: the original may be busy with another thread's blocking call
            clone = original->clone();
          } catch (const std::exception&) {
            clone = original;  // not every store can be cloned
          }
        }
        action(*clone);
      }
    }

    std::mutex mutex;  // guards the members below
    std::condition_variable changed;
    std::deque<std::function<void(c10d::Store&)>> actions;
    c10::intrusive_ptr<c10d::Store> store;  // null: no more calls come
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

FaultBoard::FaultBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::vector<int> global_ranks)
    : rank_(rank), global_ranks_(std::move(global_ranks)), store_(std::make_unique<PatientStore>(store)) {}

FaultBoard::~FaultBoard() = default;

void FaultBoard::post(const FaultReport& report) {
  store_->call(
      [key = report_key(rank_), text = describe(report) + kSeparator + report.error](c10d::Store& store) {
        store.set(key, text);
        return store.add(kPostedKey, 1);
      },
      kPostPatience);
}

bool FaultBoard::any_report() {
  const auto count = store_->call([](c10d::Store& store) { return store.add(kPostedKey, 0); }, std::chrono::seconds(1));
  return count.value_or(0) > 0;
}

std::string FaultBoard::diagnose(const FaultReport& own, std::chrono::milliseconds patience) {
  const int num_ranks = static_cast<int>(global_ranks_.size());
  const auto posted = store_->call(
      [num_ranks, patience](c10d::Store& store) {
        wait_for_count(store, kPostedKey, num_ranks, patience);
        std::map<int, std::string> texts;
        for (int rank = 0; rank < num_ranks; ++rank) {
          const std::string key = report_key(rank);
          if (store.check({key})) {
            texts[rank] = store.get_to_str(key);
          }
        }
        return texts;
      },
      patience + kPostPatience);
  store_->call([](c10d::Store& store) { return store.add(kReadKey, 1); }, kPostPatience);
  if (rank_ == 0) {  // its process usually hosts the store: once it ends, the others can no longer read
    store_->call(
        [patience](c10d::Store& store) { return wait_for_count(store, kReadKey, store.add(kPostedKey, 0), patience); },
        patience + kPostPatience);
  }
  return posted ? sentence(*posted, own)
                : "The store that ranks report to did not answer: its host (global rank 0, unless a launcher hosts "
                  "it) is dead or stopped";
}

std::string FaultBoard::sentence(const std::map<int, std::string>& posted, const FaultReport& own) const {
  const std::string here = describe(own);
  std::vector<int> silent;
  std::vector<std::string> elsewhere;
  std::vector<std::string> alike;
  for (int rank = 0; rank < static_cast<int>(global_ranks_.size()); ++rank) {
    const auto found = posted.find(rank);
    if (found == posted.end()) {
      silent.push_back(global_ranks_[rank]);
      continue;
    }
    const auto name = "rank " + std::to_string(global_ranks_[rank]);
    const size_t split = found->second.find(kSeparator);
    const std::string where = found->second.substr(0, split);
    const std::string error = found->second.substr(split + 1);
    if (where != here) {
      elsewhere.push_back(detail::concatenate(name, " was in ", where, ": ", error));
    } else if (rank != rank_) {
      alike.push_back(detail::concatenate(name, ": ", error));
    }
  }
  std::string text = "All ranks reported";
  if (!silent.empty()) {
    text = std::string("No word from rank") + (silent.size() > 1 ? "s " : " ") + ranks_text(silent) +
           ": dead, stopped, or not in a collective of this group";
  }
  auto others = std::move(elsewhere);
  others.insert(others.end(), alike.begin(), alike.end());
  for (size_t i = 0; i < others.size() && i < kMostOthers; ++i) {
    text += "; " + others[i];
  }
  return others.size() > kMostOthers ? text + "; ..." : text;
}

}  // namespace isthmus::torch_backend
