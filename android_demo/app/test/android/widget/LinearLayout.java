package android.widget;

import android.content.Context;
import android.view.Gravity;
import android.view.View;
import android.view.ViewGroup;

public class LinearLayout extends ViewGroup {
    public static final int VERTICAL = 1;

    private boolean vertical;
    private int gravity;

    public LinearLayout(Context context) {
        super(context);
    }

    public static class LayoutParams extends ViewGroup.MarginLayoutParams {
        public int gravity;
        public float weight;

        public LayoutParams(int width, int height) {
            super(width, height);
        }

        public LayoutParams(int width, int height, float weight) {
            super(width, height);
            this.weight = weight;
        }
    }

    public void setOrientation(int orientation) {
        vertical = orientation == VERTICAL;
    }

    public void setGravity(int gravity) {
        this.gravity = gravity;
    }

    private LayoutParams of(View child) {
        return (LayoutParams) child.fakeParams();
    }

    @Override
    public void fakeLayout(int available, boolean fill, int exactly) {
        width = available;
        if (vertical) {
            column(exactly);
        } else {
            row();
        }
    }

    /** Lays out a column; the child with a weight gets the remaining height. */
    private void column(int exactly) {
        int used = 2 * paddingY;
        View heavy = null;
        for (View child : children) {
            if (child.getVisibility() != VISIBLE) {
                continue;
            }
            LayoutParams params = of(child);
            if (params.weight > 0) {
                heavy = child;
                continue;
            }
            int available = width - 2 * paddingX - params.getMarginStart();
            child.fakeLayout(available, params.width == LayoutParams.MATCH_PARENT, -1);
            used += params.topMargin + child.getHeight();
        }
        if (heavy != null) {
            heavy.fakeLayout(width - 2 * paddingX, true, exactly - used);
        }
        height = exactly >= 0 ? exactly : used;
        int top = paddingY;
        for (View child : children) {
            if (child.getVisibility() == VISIBLE) {
                top += of(child).topMargin;
                child.fakeTop = top;
                child.fakeLeft = of(child).gravity == Gravity.END
                        ? width - paddingX - child.getWidth() : paddingX + of(child).getMarginStart();
                top += child.getHeight();
            }
        }
    }

    /** Lays out a row; the child with a weight gets the remaining width. */
    private void row() {
        int left = width - 2 * paddingX;
        for (View child : children) {
            if (of(child).weight == 0) {
                child.fakeLayout(left, false, -1);
                left -= child.getWidth();
            }
        }
        int highest = 0;
        int x = paddingX;
        for (View child : children) {
            if (of(child).weight > 0) {
                child.fakeLayout(left, true, -1);
            }
            child.fakeLeft = x;
            x += child.getWidth();
            highest = Math.max(highest, child.getHeight());
        }
        height = highest + 2 * paddingY;
        for (View child : children) {
            child.fakeTop = gravity == Gravity.BOTTOM ? height - paddingY - child.getHeight() : paddingY;
        }
    }
}
