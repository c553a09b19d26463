#include "torch/faults/fault_board.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>
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
constexpr char kSeparator = '\x1f';

std::string to_text(const FaultReport& report) {
  std::ostringstream text;
  text << report.sequence_number << kSeparator << report.operation << kSeparator << report.tensor << kSeparator
       << report.unit << kSeparator << report.phase << kSeparator << report.error;
  return text.str();
}

FaultReport from_text(const std::string& text) {
  std::istringstream stream(text);
  FaultReport report;
  std::string number;
  std::getline(stream, number, kSeparator);
  std::getline(stream, report.operation, kSeparator);
  std::getline(stream, report.tensor, kSeparator);
  std::getline(stream, report.unit, kSeparator);
  std::getline(stream, report.phase, kSeparator);
  std::getline(stream, report.error, kSeparator);
  report.sequence_number = std::stoull(number);
  return report;
}

std::string report_key(int rank) { return "report/" + std::to_string(rank); }

// Returns once the counter has reached `target`, or after `patience`.
void wait_for_count(c10d::Store& store, const char* key, int64_t target, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (store.add(key, 0) < target && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPollPause);
  }
}

bool same_operation(const FaultReport& a, const FaultReport& b) {
  return a.sequence_number == b.sequence_number && a.operation == b.operation && a.tensor == b.tensor &&
         a.unit == b.unit;
}

}  // namespace

std::string describe(const FaultReport& report) {
  return report.operation + " #" + std::to_string(report.sequence_number) +
         (report.tensor.empty() ? "" : " of " + report.tensor) + (report.unit.empty() ? "" : " of unit " + report.unit);
}

struct PatientStore::State {
  explicit State(c10::intrusive_ptr<c10d::Store> original) : store(std::move(original)) {}

  void run() {
    std::unique_lock lock(mutex);
    bool cloned = false;
    while (true) {
      changed.wait(lock, [&] { return closed || !actions.empty(); });
      if (closed) {
        return;
      }
      auto action = std::move(actions.front());
      actions.pop_front();
      lock.unlock();
      if (!std::exchange(cloned, true)) {
        clone_store();
      }
      action();
      lock.lock();
    }
  }

  // The clone has its own connection: the original may be busy with another thread's blocking call.
  void clone_store() {
    try {
      store = store->clone();
    } catch (const std::exception&) {
      // Not every store can be cloned: keep the original.
    }
  }

  c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> actions;
  bool closed = false;
};

// The thread starts here, not with the first call: a process that has run out of memory by then could not start it.
PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store) : state_(std::make_shared<State>(std::move(store))) {
  std::thread([state = state_] { state->run(); }).detach();
}

PatientStore::~PatientStore() {
  std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

bool PatientStore::call(std::function<void(c10d::Store&)> action, std::chrono::milliseconds timeout) {
  struct Outcome {
    bool done = false;
    bool succeeded = false;
  };
  auto outcome = std::make_shared<Outcome>();
  auto state = state_;
  std::unique_lock lock(state->mutex);
  state->actions.emplace_back([state, outcome, action = std::move(action)] {
    bool succeeded = true;
    try {
      action(*state->store);
    } catch (const std::exception&) {
      succeeded = false;
    }
    std::lock_guard done_lock(state->mutex);
    *outcome = {true, succeeded};
    state->changed.notify_all();
  });
  state->changed.notify_all();
  state->changed.wait_for(lock, timeout, [&] { return outcome->done; });
  return outcome->succeeded;
}

FaultBoard::FaultBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::vector<int> global_ranks)
    : rank_(rank), global_ranks_(std::move(global_ranks)), store_(store) {}

void FaultBoard::post(const FaultReport& report) {
  store_.call(
      [key = report_key(rank_), text = to_text(report)](c10d::Store& store) {
        store.set(key, text);
        store.add(kPostedKey, 1);
      },
      kPostPatience);
}

bool FaultBoard::any_report() {
  auto count = std::make_shared<std::atomic<int64_t>>(0);
  store_.call([count](c10d::Store& store) { *count = store.add(kPostedKey, 0); }, std::chrono::seconds(1));
  return *count > 0;
}

std::optional<FaultBoard::Reports> FaultBoard::read_reports(std::chrono::milliseconds patience) {
  struct Answer {
    std::mutex mutex;
    std::optional<Reports> reports;
  };
  auto answer = std::make_shared<Answer>();
  const int num_ranks = static_cast<int>(global_ranks_.size());
  store_.call(
      [answer, num_ranks, patience](c10d::Store& store) {
        wait_for_count(store, kPostedKey, num_ranks, patience);
        Reports reports;
        for (int rank = 0; rank < num_ranks; ++rank) {
          const std::string key = report_key(rank);
          if (store.check({key})) {
            reports[rank] = from_text(store.get_to_str(key));
          }
        }
        std::lock_guard lock(answer->mutex);
        answer->reports = std::move(reports);
      },
      patience + kPostPatience);
  std::lock_guard lock(answer->mutex);  // a late answer may still come
  return answer->reports;
}

// Rank 0's process usually hosts the store: once it ends, the others can no longer read.
void FaultBoard::let_others_read(std::chrono::milliseconds patience) {
  store_.call([](c10d::Store& store) { store.add(kReadKey, 1); }, kPostPatience);
  if (rank_ == 0) {
    store_.call(
        [patience](c10d::Store& store) {
          const auto num_posted = store.add(kPostedKey, 0);
          wait_for_count(store, kReadKey, num_posted, patience);
        },
        patience + kPostPatience);
  }
}

std::string FaultBoard::diagnose(const FaultReport& own, std::chrono::milliseconds patience) {
  const auto reports = read_reports(patience);
  let_others_read(patience);
  return reports ? sentence(*reports, own)
                 : "The store that ranks report to did not answer: its host (global rank 0, unless a launcher hosts "
                   "it) is dead or stopped";
}

std::string FaultBoard::sentence(const Reports& reports, const FaultReport& own) const {
  std::vector<int> silent;
  std::vector<std::string> elsewhere;
  std::vector<std::string> alike;
  for (int rank = 0; rank < static_cast<int>(global_ranks_.size()); ++rank) {
    const auto name = "rank " + std::to_string(global_ranks_[rank]);
    const auto found = reports.find(rank);
    if (found == reports.end()) {
      silent.push_back(global_ranks_[rank]);
    } else if (!same_operation(found->second, own)) {
      elsewhere.push_back(name + " was in " + describe(found->second) + ": " + found->second.error);
    } else if (rank != rank_) {
      alike.push_back(name + ": " + found->second.error);
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
