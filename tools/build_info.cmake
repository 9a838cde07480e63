# Writes OUT, a header with the commit of the folder SOURCE and the number of commits up to it; "unknown" and 0 where
# there is no git.
set(commit unknown)
set(number 0)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --short=8 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${found})
    execute_process(COMMAND ${GIT} rev-list --count HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE number
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT
     "#define ATH_BUILD_COMMIT \"${commit}\"\n#define ATH_BUILD_NUMBER ${number}\n" @ONLY)
