// All of Sluice's public interface.
#pragma once

#include <sluice/combine.h>
#include <sluice/communicator.h>
#include <sluice/dispatch.h>
#include <sluice/errors.h>
#include <sluice/event.h>
#include <sluice/group.h>
#include <sluice/info.h>
#include <sluice/limits.h>
#include <sluice/options.h>
#include <sluice/route.h>
#include <sluice/tensor.h>
#include <sluice/trace.h>
#include <sluice/version.h>
