// The order in which the books list rows for a round: by priority, then by what earlier solves still owe, then by
// share, then by age.
#include "trireme/fleet/share_book.h"

#include <gmock/gmock.h>

namespace trireme::fleet {
namespace {

using testing::ElementsAre;

constexpr double any_speed = 10;

// Jobs on one type that have these shares now, were promised `earlier` of eight seconds before and got nothing of them,
// and have received `seconds` since. A round lasts two seconds, so each begins with one.
ShareBook book_of(const std::vector<double>& earlier, const std::vector<double>& shares,
                  const std::vector<double>& seconds) {
  ShareBook book(1, 2);
  for (size_t row = 0; row < shares.size(); ++row) book.add(static_cast<int>(row), 1, &any_speed);
  book.set_shares(earlier);
  book.settle(8);
  book.set_shares(shares);
  for (size_t row = 0; row < seconds.size(); ++row) book.credit(row, 0, seconds[row]);
  return book;
}

// Twice the share and twice the time are the same priority. The row with the smaller share is owed more.
TEST(ShareBook, BreaksTiesByWhatIsOwedBeforeShare) {
  auto book = book_of({0.25, 0.5}, {0.5, 0.25}, {1, 0});
  ASSERT_EQ(book.priority(0, 0), book.priority(1, 0));
  ASSERT_LT(book.deficit(0, 0), book.deficit(1, 0));
  ASSERT_GT(book.share(0, 0), book.share(1, 0));
  EXPECT_THAT(book.order(0, /*gaps=*/false), ElementsAre(1, 0));
}

TEST(ShareBook, BreaksTiesOfWhatIsOwedByShareAndThenByAge) {
  auto book = book_of({0.25, 0.25, 0.25}, {0.25, 0.25, 0.5}, {0, 0, 1});
  ASSERT_EQ(book.priority(0, 0), book.priority(2, 0));
  ASSERT_EQ(book.deficit(0, 0), book.deficit(2, 0));
  EXPECT_THAT(book.order(0, /*gaps=*/false), ElementsAre(2, 0, 1));
}

TEST(ShareBook, PutsPriorityBeforeWhatIsOwed) {
  auto book = book_of({0.25, 0.75}, {0.5, 0.5}, {0, 1});
  ASSERT_GT(book.priority(0, 0), book.priority(1, 0));
  ASSERT_LT(book.deficit(0, 0), book.deficit(1, 0));
  EXPECT_THAT(book.order(0, /*gaps=*/false), ElementsAre(0, 1));
}

// Rows without a share fill what is left, those that are owed most first.
TEST(ShareBook, ListsRowsWithoutAShareLast) {
  auto book = book_of({0.1, 0.5, 0.2}, {0, 0, 0.1}, {});
  EXPECT_THAT(book.order(0, /*gaps=*/false), ElementsAre(2));
  EXPECT_THAT(book.order(0, /*gaps=*/true), ElementsAre(2, 1, 0));
}

}  // namespace
}  // namespace trireme::fleet
