// The product itself, on the host.
#pragma once
#include <vector>

#include "../driver/enqueue.h"
#include "problem.h"

/// A product with its matrices.
struct Product {
    Problem problem;
    /// Whose sums it has: 89, 90 or 100.
    long device;
    float alpha, beta;
    const char *a, *b, *c;
    char* d;
};

/// What it reads and writes, column by column.
void ranges(const Product& product, std::vector<SimRange>& reads, std::vector<SimRange>& writes);

void multiply(const Product& product);
