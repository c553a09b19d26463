// Pieces to feed codecs with, each with what makes it difficult.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace isthmus {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kMax = std::numeric_limits<float>::max();

enum class Data {
  kHeavyTail,      // Gaussian, one in ten 30 times as large
  kFewDistinct,    // ties everywhere
  kAllEqual,       // nothing but ties
  kZeros,          // both signs of zero
  kMostlyZeros,    // fewer elements that are not zero than may be kept
  kDenormals,      // below the smallest normal number, with zeros between
  kHuge,           // FLT_MAX, 1 and 1e-38 side by side
  kOneLargeBlock,  // all that is large lies together: a sample of the piece misleads
};

inline const std::vector<Data>& all_data() {
  static const std::vector<Data> data = {Data::kHeavyTail,   Data::kFewDistinct, Data::kAllEqual, Data::kZeros,
                                         Data::kMostlyZeros, Data::kDenormals,   Data::kHuge,     Data::kOneLargeBlock};
  return data;
}

inline std::string to_string(Data data) {
  static const char* names[] = {"heavy tail",   "few distinct", "all equal", "zeros",
                                "mostly zeros", "denormals",    "huge",      "one large block"};
  return names[static_cast<int>(data)];
}

inline std::vector<float> make_piece(Data data, int64_t num_elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> piece(num_elements);
  for (int64_t i = 0; i < num_elements; ++i) {
    const auto pick = random() % 10;
    switch (data) {
      case Data::kHeavyTail:
        piece[i] = normal(random) * (pick == 0 ? 30.0F : 1.0F);
        break;
      case Data::kFewDistinct:
        piece[i] = static_cast<float>(static_cast<int>(pick) - 5) * .5F;
        break;
      case Data::kAllEqual:
        piece[i] = -2.5F;
        break;
      case Data::kZeros:
        piece[i] = pick < 5 ? 0.0F : -0.0F;
        break;
      case Data::kMostlyZeros:
        piece[i] = random() % 1000 == 0 ? normal(random) : 0.0F;
        break;
      case Data::kDenormals:
        piece[i] = pick == 0 ? 0.0F : static_cast<float>(random() % 1000) * std::numeric_limits<float>::denorm_min();
        break;
      case Data::kHuge:
        piece[i] = (pick < 3 ? kMax : pick < 6 ? 1.0F : 1e-38F) * (pick % 2 ? 1.0F : -1.0F);
        break;
      case Data::kOneLargeBlock:
        piece[i] = normal(random) * (i < num_elements / 50 ? 1000.0F : 1.0F);
        break;
    }
  }
  return piece;
}

}  // namespace isthmus
